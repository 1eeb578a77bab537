"""What a run will take, told before it runs: parameters, memory, time and disk."""
