"""stub being written."""
