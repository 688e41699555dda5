"""Code that all protocols of the gateway share: authentication, errors, inference and repository calls."""
