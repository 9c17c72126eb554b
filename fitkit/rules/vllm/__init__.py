"""What vLLM allocates, to the block: settings, plan of the cache, weights, the measured rest."""
