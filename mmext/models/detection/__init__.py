"""What detectors need beside backbone and neck; imports mmdet, hence only when asked for."""
