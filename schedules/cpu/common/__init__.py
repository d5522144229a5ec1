"""What the CPU templates of several families share."""
