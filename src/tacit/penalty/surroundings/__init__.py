"""What is done around the user's code: state, autocast, compiled models, refusals."""
