// The printed link has the token behind `#`: browsers send that part to nobody, so no log of a proxy has it.
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname); // neither stays in the history
  document.getElementById("token").value = token;
  document.forms[0].submit();
} else {
  document.getElementById("token").focus();
}
