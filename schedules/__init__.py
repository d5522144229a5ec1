"""A schedule for every PrimFunc: templates, and the hardware rows that they compute with."""
