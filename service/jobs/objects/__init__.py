"""What the server keeps for its callers: models, artifacts, record sets, uploads, keys."""
