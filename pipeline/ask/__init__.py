"""What people ask of finished work: where it came from, what differs, what it says. Torch-free; scripts/ print it."""
