"""The page's figures, each made from run records alone and left out where its data do not exist."""
