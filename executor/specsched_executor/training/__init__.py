"""Making a drafter for a target: `specsched train drafter`."""
