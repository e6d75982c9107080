"""What clients ask for: each route a file, and what several of them share."""
