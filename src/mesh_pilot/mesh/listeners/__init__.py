"""Listeners: which ones a proxy has, which services or servers share each, and what conflicts."""
