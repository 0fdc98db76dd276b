"""Tables and figures of scalings by pair and by distance, without a trained model."""
