"""Work before admission: bounded, fair between clients, cancelled when a client leaves."""
