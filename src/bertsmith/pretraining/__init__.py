"""What a pre-training run is assembled from, beside its command."""
