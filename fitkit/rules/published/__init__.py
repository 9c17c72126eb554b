"""The three published rule sets, each exactly as its planner counts: library, budget, shard."""
