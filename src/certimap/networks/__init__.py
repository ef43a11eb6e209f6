"""certimap."""
