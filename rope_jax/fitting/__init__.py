"""Learning rotary numbers by gradient descent, with the model's weights frozen."""
