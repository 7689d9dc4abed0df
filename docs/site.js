// Code that scrolls can be reached by the keyboard.
document.querySelectorAll("pre > code").forEach((code) => code.setAttribute("tabindex", "0"));
