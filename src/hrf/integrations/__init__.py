"""Other libraries' models with attention in linear time."""
