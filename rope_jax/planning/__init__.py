"""What a run or a sweep would take, found out without starting it."""
