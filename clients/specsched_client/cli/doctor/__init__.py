"""`specsched doctor`: what is wrong with an installation on this machine, and how to mend it.

Each module looks at one thing and returns findings; none of them changes anything.
"""
