"""What stages share. No stage imports another."""
