"""From a source of text to batches: corpora → token memory maps → windows."""
