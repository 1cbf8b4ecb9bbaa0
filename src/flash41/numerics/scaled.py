"""A quantised tensor: codes, scales, the format of both, and how many channels share a scale."""
