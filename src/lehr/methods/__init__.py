"""The methods, one file each: which filling each slot of the loop has."""
