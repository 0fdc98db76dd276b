"""Tables and figures of scalings without a trained model, pair by pair and by distance."""
