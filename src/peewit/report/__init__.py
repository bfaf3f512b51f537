"""Reports as pages: `page.write(report, path)`."""
