"""What training reads: examples as text, files, batches."""
