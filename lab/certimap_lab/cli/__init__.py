"""The subcommands of `certimap bench`."""
