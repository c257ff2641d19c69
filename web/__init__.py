"""Sources of the explorer: `tables` computes its numbers, ``explorer.js`` draws them."""
