"""Code that all gateway protocols share: authentication, limits, errors, inference calls."""
