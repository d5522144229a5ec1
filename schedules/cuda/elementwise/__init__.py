"""What reduces nothing: elementwise functions, copies, slices, concatenations, gathers and transpositions."""
