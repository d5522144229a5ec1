"""What a hostile client sends, and the refusals that docs/service.md and docs/api.md promise for it."""
