"""What every engine is made of and no framework knows: copies and their lanes, storages that move, steps and what they teach."""
