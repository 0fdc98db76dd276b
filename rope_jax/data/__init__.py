"""From a source of text to batches: documents → tokens on disk → windows."""
