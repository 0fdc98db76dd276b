"""The device mesh, runs of several processes, and the hardware's memory and speed."""
