"""The only place where certificates come from."""
