"""Reading, building and scheduling TIR: what every template stands on."""
