"""Load on a real cluster, with things that go wrong in it, and what must hold after each round. `scripts/soak` runs it."""
