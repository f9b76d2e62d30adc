"""Takes a U-Net through every way of running it, checks each answer, measures fairly and names the winner."""
