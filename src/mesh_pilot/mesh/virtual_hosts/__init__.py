"""Virtual hosts: which ones a route table has, with their domains, and where the routes of each come from."""
