"""What the commands share: launch, checks before anything is built, clear errors, arguments."""
