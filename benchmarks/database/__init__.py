"""How quick the service's database stays when it is full, and how retention empties it."""
