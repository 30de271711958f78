// A file of its own, as the pages' policy allows no script inside a page.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger", deepLinking: true, validatorUrl: null });
