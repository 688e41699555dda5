"""What nodes use: CPU, memory, bytes, GPU; sampled beside a run."""
