"""Tables, terminal output, figures and pages of what was measured."""
