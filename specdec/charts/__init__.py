"""Charts as SVG: of whatever numbers, for reports and pictures. Nothing of specdec."""
