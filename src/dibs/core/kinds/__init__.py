"""What a user can ask for, made of holds."""
