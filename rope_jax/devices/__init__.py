"""The mesh of devices, several processes as one run, and what the hardware can do."""
